"""The driver `ec2`: Amazon's, and whatever speaks its protocol at another `endpoint`.

Requests are posted, so that nothing of them is in a URL, and answers are read by the names of their elements,
whatever their namespace is: libcloud reads a strange namespace as an empty list.
"""

from providers.cloud.ec2.provider import Ec2

__all__ = ["Ec2"]
