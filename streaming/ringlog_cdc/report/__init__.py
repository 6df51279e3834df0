"""Progress lines and metrics of the job."""
