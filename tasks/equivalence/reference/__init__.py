"""What the ranks' numbers are held against: computed a second time, without the code of training/.

One file per workload, found by its name. Each offers `rows_of(folder, rows, seq_len=)` and, of what that gives,
`compute_rows_loss(model_dir, rows, device=)`, a sum and the number of labels, for the first step's loss; and
`load_model(model_dir, device=, is_packed=)` and `loss_sum(model, micro_batch, chunk_rows=)` for the updates of
update.py. It shares neither model loading nor loss with training/workloads/, so that a defect there cannot be in both.
"""
