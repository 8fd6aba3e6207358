"""Who starts now, and how much of the queue each user has. No files, no clock."""
