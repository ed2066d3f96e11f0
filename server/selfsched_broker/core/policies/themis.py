"""`themis`: a partial-allocation auction over finish-time fairness.

The rule is `auction`; its deviations from the paper are listed in docs/auction.md.
"""

from __future__ import annotations

import numpy as np

from selfsched_broker.core.auction import hold_auction
from selfsched_broker.core.market import Market, Ruling


class Themis:
    """Largest product of values 1 / rho; see `selfsched_broker.core.auction`."""

    name = "themis"

    def rule(self, market: Market, rng: np.random.Generator) -> Ruling:
        """Divide the seats. The optimum is unique, so the generator is not drawn from."""
        return hold_auction(market)
