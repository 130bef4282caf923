"""Named queries, one file per noun; `db.named` reads them."""
