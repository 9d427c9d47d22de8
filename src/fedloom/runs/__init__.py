"""Run folders and what is done with them: run, compare, sweep, personalize, adopt, export, analyze."""
