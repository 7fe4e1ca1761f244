"""Labs: which parts a correct tree verification needs, also through linear layers."""
