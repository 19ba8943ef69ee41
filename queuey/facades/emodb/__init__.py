"""EmoDB's queue service: names, ids, messages and errors of its protocol, and the views that its clients call."""
