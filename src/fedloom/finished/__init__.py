"""What is done with a finished run: personalize, adopt, analyze, export."""
