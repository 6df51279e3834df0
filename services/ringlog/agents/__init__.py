"""The agents: pure decisions (``*_core``) and the faust shells that perform them."""
