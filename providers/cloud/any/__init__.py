"""The port of clouds (`site.Site`), the life of nodes, volumes and attachments, and drivers of one file.

Each driver has a class for its site; for all others of libcloud's it is `libcloud_site.LibcloudSite`, with
libcloud's own methods.
"""
