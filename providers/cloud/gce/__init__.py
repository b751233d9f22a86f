"""The driver `gce`: Google's Compute Engine.

Names are taken once in a zone, so what is made is named after its token. A request that changes something is
answered with an operation, whose errors come later than its answer.
"""

from providers.cloud.gce.provider import Gce

__all__ = ["Gce"]
