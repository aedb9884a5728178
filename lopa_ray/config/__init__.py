"""What may be set, per group and per request; checked when made. No object that decodes is built here."""
