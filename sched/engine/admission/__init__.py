"""What is refused at submit, and how much of the queue each user has."""
