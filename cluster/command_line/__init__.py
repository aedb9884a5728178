"""What all commands share: the options of a configuration, exit statuses, progress on a terminal, and commands of other
packages."""
