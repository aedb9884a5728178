"""What all commands share: the options of a configuration, exit statuses, and commands of other packages."""
