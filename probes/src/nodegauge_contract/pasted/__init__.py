"""Output of nvidia-smi, logs and other tools that people paste, read into a result document.

`cleaning` removes what terminals, chats and web pages add.  Readings: `tables` reads `topo -m` and `topo
-p2p`, `query` reads `-q` and `-q -x`, `query_csv` reads `--query-gpu`, `fields` says which of their lines is
which value, `overview` reads the plain table.  Statements: `kernel` reads Xids and SXids, `failures`
messages, `links` and `machine` what nvlink and ipmitool list, `diagnostics` results of tests, `refusals` what
nvidia-smi refuses.  `document` makes one document of all of them, `sections` one for each machine.  A paste
has fewer readings than a probe: what it does not contain stays "not read".
"""
