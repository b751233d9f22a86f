"""Any driver of libcloud's, by what it can do, and those that are wired: `digitalocean`, `vultr`.

`site.Site` is what a cloud has to be able to do; a driver is wired by a class that does it. For every other
driver `named.Named` does, with libcloud's own methods. Everything else (that something is made once, what a
volume may be asked for, when a node is ready) is the same for all of them: see `nodes`, `volumes`,
`attachments`.
"""

from providers.cloud.any.provider import AnyCloud

__all__ = ["AnyCloud"]
