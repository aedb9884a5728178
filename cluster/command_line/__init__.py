"""Common code of all commands: options of a configuration, exit statuses, progress, commands of other packages."""
