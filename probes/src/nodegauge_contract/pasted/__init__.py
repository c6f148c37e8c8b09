"""Output of `nvidia-smi` that people paste, read into a result document.

`cleaning` removes what terminals, chats and web pages add; `tables` reads `topo -m` and `topo -p2p`; `query`
reads `-q` and `-q -x`; `fields` says which of their lines is which value; `document` makes one document of
all of them.  A paste has fewer readings than a probe: what it does not contain stays "not read".
"""
