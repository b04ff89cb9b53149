"""Choosing tokens: the logits pipeline, counter-based draws, log-probabilities.

Nothing here knows of requests, plans or models beyond a matrix of logits and what `SamplingRows`
says of its rows.
"""

from __future__ import annotations
