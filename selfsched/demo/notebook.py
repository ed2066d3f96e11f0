"""Execute a notebook in a real Jupyter kernel: `python -m selfsched.demo.notebook IN OUT [EPOCHS]`.

Its cells' output is printed here as it comes. On SIGTERM the kernel is interrupted, as the
Stop button does, so that its training ends with a checkpoint; then it is shut down.
"""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

_EPOCHS = re.compile(r"^epochs = \d+$", re.MULTILINE)


class PrintingClient(NotebookClient):  # type: ignore[misc]  # nbclient is not typed here
    """Prints streams of the cells while they run."""

    def process_message(self, message: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """What nbclient calls for each message of the kernel."""
        if message["msg_type"] == "stream":
            print(message["content"]["text"], end="", flush=True)
        return super().process_message(message, cell, cell_index)


def with_epochs(source: str, epochs: int) -> str:
    """The cell with another number of epochs.

    Raises:
        ValueError: the cell has no line `epochs = N`.
    """
    changed, count = _EPOCHS.subn(f"epochs = {epochs}", source)
    if count != 1:
        raise ValueError(f"expected one line `epochs = N` in the notebook, found {count}")
    return changed


def main() -> None:
    """Execute the notebook named on the command line and keep it with its outputs."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    notebook = nbformat.read(source, as_version=4)
    if len(sys.argv) > 3:
        for cell in notebook.cells:
            if _EPOCHS.search(cell.source):
                cell.source = with_epochs(cell.source, int(sys.argv[3]))
    client = PrintingClient(notebook, kernel_name="python3", timeout=None)
    signal.signal(signal.SIGTERM, lambda *_: client.km and client.km.interrupt_kernel())
    try:
        client.execute(cwd=str(source.parent))
    except CellExecutionError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    finally:
        nbformat.write(notebook, target)


if __name__ == "__main__":
    main()
