"""One file per dataset: where its images come from and how they are laid out."""
