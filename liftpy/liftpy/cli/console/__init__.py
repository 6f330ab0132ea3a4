"""The web console: pages over the admin API, for `liftpy console`.

A page is rendered on the server from what the admin API and a consumer say. No web code is in a node.
"""
