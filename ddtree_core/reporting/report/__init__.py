"""The report: notebooks run through papermill, and their pages."""
