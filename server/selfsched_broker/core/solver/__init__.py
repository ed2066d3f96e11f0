"""The best division of thousands of devices, with a proved bound on what it leaves.

`problem` states the question in arrays, `dual` prices the devices and proves the bound,
`packing` tells whether pieces fit the nodes, `rounding` turns prices into a division, `search`
improves it, `exact` finishes it by integer programming, `solve` is all of it in order. Then
`laying` says on which node every piece lies, and `payments` what the others would do without a
winner. The formulas and figures are in docs/auction.md.
"""
