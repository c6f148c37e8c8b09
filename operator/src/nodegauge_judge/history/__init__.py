"""What a report keeps of earlier runs, and how much each counter grew since the last one."""
