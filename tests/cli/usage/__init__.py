"""What both programs answer without doing anything: lists, help, and invalid command lines."""
