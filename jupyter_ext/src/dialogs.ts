/** Dialogs that a double click opens once, and leaves open. */
import { showDialog, type Dialog } from '@jupyterlab/apputils';

/**
 * JupyterLab takes a click beside a dialog as "Cancel". The second click of a double click on the
 * button that opened it is one, and would close it unseen.
 */
export async function showDialogOnce<T>(options: Partial<Dialog.IOptions<T>>): Promise<Dialog.IResult<T>> {
  const ignore = (event: MouseEvent): void => {
    if (event.detail > 1 && event.target instanceof Element && event.target.closest('.jp-Dialog-content') === null) {
      event.stopPropagation();
      event.preventDefault();
    }
  };
  document.addEventListener('click', ignore, true);
  try {
    return await showDialog(options);
  } finally {
    document.removeEventListener('click', ignore, true);
  }
}
