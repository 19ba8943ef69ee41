"""How both programs answer before they do anything: lists, help, and command lines that cannot be meant."""
