"""Files that say what a thing gave once, and has to give again; each folder says how it is made."""
