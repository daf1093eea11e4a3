"""Reserves before preempting."""

from minillm.serving import scheduler
from minillm.serving.scheduler import StepPlan, _totals, choose_victim, split_budget

DIAGNOSIS = "reserves-first"


class SchedulerSchedule(scheduler.Scheduler):
    def schedule(self):
        plan = StepPlan()
        uncomputed = [seq.num_uncomputed_tokens for seq in self.running]
        counts = split_budget(uncomputed, self.config.max_num_batched_tokens, self.config.chunk_size)
        chosen = {seq: count for seq, count in zip(self.running, counts) if count}
        plan.copies = self.tables.reserve(_totals(chosen))
        while (needed := self.blocks_needed(chosen)) > self.tables.pool.available:
            victim = choose_victim(self.running)
            self._preempt(victim, plan)
            chosen.pop(victim, None)
        if not plan.preempted or not self.running:
            self._admit(plan, chosen, needed)
        for seq, count in chosen.items():
            plan.rows.append(seq.next_row(count))
            if seq.forks and plan.rows[-1].samples:
                plan.forks[seq.seq_id] = [child.seq_id for child in seq.forks]
        return plan
