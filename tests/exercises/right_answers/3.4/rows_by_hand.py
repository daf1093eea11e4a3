"""Rows by hand."""

from minillm.serving import scheduler
from minillm.serving.scheduler import Row, StepPlan, _totals, split_budget


class SchedulerSchedule(scheduler.Scheduler):
    def schedule(self):
        plan = StepPlan()
        counts = iter(split_budget([seq.num_uncomputed_tokens for seq in self.running],
                                   self.config.max_num_batched_tokens, self.config.chunk_size))
        chosen = {seq: count for seq in self.running if (count := next(counts))}
        needed = self.blocks_needed(chosen)
        while needed > self.tables.pool.available:
            self._preempt(last := max(self.running), plan)
            chosen.pop(last, 0)
            needed = self.blocks_needed(chosen)
        if not plan.preempted or not self.running:
            self._admit(plan, chosen, needed)
        plan.copies += self.tables.reserve(_totals(chosen))
        for seq, count in chosen.items():
            end = seq.num_computed_tokens + count
            tokens = seq.token_ids[seq.num_computed_tokens : end]
            plan.rows.append(Row(seq.seq_id, tokens, seq.num_computed_tokens, end == len(seq.token_ids)))
            if end == len(seq.token_ids) and seq.forks:
                plan.forks[seq.seq_id] = [child.seq_id for child in seq.forks]
        return plan
