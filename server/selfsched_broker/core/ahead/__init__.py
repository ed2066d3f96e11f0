"""The broker's look-ahead, in parts: the scene, the draws, the policies' rules, the play."""
