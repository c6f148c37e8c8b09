"""The BMC reader: a process of its own that reads every node's BMC and writes what each said.

Off by default.  It has the BMCs' credentials and no right to touch a node; the operator has those rights and
no credentials (ADR 0024).  `inventory` reads the files of a Secret; `poller` reads each BMC at its pace;
`objects` writes ChassisReadings; `app` keeps both in step with inventory and nodes.  Nothing here judges.
"""
