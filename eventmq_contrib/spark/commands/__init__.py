"""The commands of ``eventmq spark``: a module has the command of its name as ``command``."""
