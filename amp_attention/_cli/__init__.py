"""Options, tables and streams of the command line; the commands themselves are in `amp_attention.cli`."""
