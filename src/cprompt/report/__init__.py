"""What a person sees of records: tables and figures, made from records only."""
