"""`luxx doctor`: checks of an installation and what to do about each finding."""
