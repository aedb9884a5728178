"""TypeSafe's protocol: requests for decisions, answers, errors and the list of models."""
