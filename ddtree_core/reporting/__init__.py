"""What people look at: run folders, statistics, figures, the tree visualiser and the report."""
