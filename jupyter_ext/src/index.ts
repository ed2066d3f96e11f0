/** The plugins: one room for the page, with its panel, status bar item, toolbar item and commands. */
import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { Api } from './api';
import { Model } from './model';
import { NotebookItem, RunsOfNotebooks } from './notebook';
import { ALL, tell, tellEnds, type Wanted } from './notices';
import { Panel } from './panel';
import { StatusItem } from './status';
import { UntoldEnds } from './untold';
import type { Room } from './view';
import { USUAL_UNITS, type Units } from './words';

const ID = 'selfsched-jupyter:plugin';
const OPEN = 'selfsched:open';
const REFRESH = 'selfsched:refresh';

const plugin: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: 'What training jobs hold, why, and when they are done.',
  autoStart: true,
  optional: [ISettingRegistry, IStatusBar, ICommandPalette, IToolbarWidgetRegistry, ITranslator, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    settings: ISettingRegistry | null,
    statusBar: IStatusBar | null,
    palette: ICommandPalette | null,
    toolbars: IToolbarWidgetRegistry | null,
    translator: ITranslator | null,
    restorer: ILayoutRestorer | null
  ) => {
    const trans = (translator ?? nullTranslator).load('selfsched_jupyter');
    const api = new Api(app.serviceManager.serverSettings);
    const room: Room = { api, model: new Model(api), trans, units: USUAL_UNITS };
    let wanted: Wanted = ALL;

    const panel = new Panel(room);
    // An icon alone is not found by who does not know it: the tab has its name beside it.
    panel.title.label = 'selfsched';
    app.shell.add(panel, 'right', { rank: 800, type: 'selfsched' });
    restorer?.add(panel, 'selfsched-panel');
    const open = (): void => {
      app.shell.activateById(panel.id);
      panel.node.focus();
    };

    app.commands.addCommand(OPEN, { label: trans.__('Show devices and jobs (selfsched)'), execute: open });
    app.commands.addCommand(REFRESH, { label: trans.__('Ask the broker again (selfsched)'), execute: () => room.model.askNow() });
    for (const command of [OPEN, REFRESH]) {
      palette?.addItem({ command, category: 'selfsched' });
    }
    statusBar?.registerStatusItem('selfsched-jupyter:status', { item: new StatusItem(room, open), align: 'left', rank: 500 });
    const runs = new RunsOfNotebooks(room);
    toolbars?.addFactory<NotebookPanel>('Notebook', 'selfsched-job', notebook => new NotebookItem(room, runs, notebook, open));

    const untold = new UntoldEnds(room.model, api, ended => tellEnds(ended, wanted, room));
    room.model.changed.connect(() => untold.look());
    room.model.happened.connect((_, changes) => tell(changes, wanted, room));
    document.addEventListener('visibilitychange', () => room.model.setVisible(document.visibilityState === 'visible'));
    window.addEventListener('online', () => room.model.askNow());

    const take = (found: ISettingRegistry.ISettings): void => {
      const of = <T>(name: string): T => found.composite[name] as T;
      room.units = { finish: of<Units['finish']>('finish'), clock: of<Units['clock']>('clock'), memory: of<Units['memory']>('memory') };
      room.model.refreshSeconds = of<number>('refreshSeconds');
      wanted = {
        started: of('notifyStarted'), grew: of('notifyGrew'), shrank: of('notifyShrank'), lost_all: of('notifyLostAll'), ended: of('notifyEnded')
      };
      panel.update();
    };
    settings?.load(ID).then(
      found => {
        take(found);
        found.changed.connect(take);
      },
      error => console.warn(`selfsched: its settings cannot be read: ${error}`)
    );
    room.model.start();
  }
};

export default plugin;
