"""The process that does jobs: started, called and watched by the node."""
