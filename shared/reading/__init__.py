"""Reading the text of requests from detokenizers, the same for gateways and native clients.

stream.py        one attached request: how far its text has been read
attachments.py   pure: which deltas are new, which streams must attach again and where
hub.py           the same over a bus: one inbox per process
submission.py    sending a request until it is accepted or refused
description.py   asking what an accepted request is
"""
