"""The live picture of a run in a notebook's cell: an anywidget, from kernel to browser only.

While a cell trains its kernel answers nobody, but what it sends is shown. So the widget has no
buttons; pause and stop are in JupyterLab's panel, which does not need the kernel. What it shows is
drawn by `selfsched.cell`, which also draws the still picture that takes its place at the end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets


class RunWidget(anywidget.AnyWidget):  # type: ignore[misc]  # a foreign class without types
    """Shows the parts of a `cell.picture.Picture`; a part that did not change is not sent."""

    _esm = Path(__file__).with_name("widget.js")
    _css = Path(__file__).with_name("widget.css")

    head = traitlets.Unicode("").tag(sync=True)
    panels = traitlets.Dict().tag(sync=True)
    said = traitlets.Unicode("").tag(sync=True)
    newest = traitlets.Unicode("").tag(sync=True)
    tail = traitlets.Unicode("").tag(sync=True)
    """The newest output, where the cell's own is full."""

    def bundle(self) -> dict[str, Any]:
        """What a front end needs to show it, by MIME type."""
        found = self._repr_mimebundle_()
        return dict(found[0] if isinstance(found, tuple) else found or {})
