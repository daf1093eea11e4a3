"""Made at the end."""

from minillm.serving import scheduler
from minillm.serving.scheduler import StepPlan, choose_victim, split_budget


class SchedulerSchedule(scheduler.Scheduler):
    def schedule(self):
        plan, chosen = StepPlan(), {}
        missing = [len(seq.token_ids) - seq.num_computed_tokens for seq in self.running]
        shares = split_budget(missing, self.config.max_num_batched_tokens, self.config.chunk_size)
        for seq, share in zip(self.running, shares):
            if share > 0:
                chosen[seq] = share
        while self.blocks_needed(chosen) > self.tables.pool.available:
            last = choose_victim(self.running)
            chosen = {seq: count for seq, count in chosen.items() if seq is not last}
            self._preempt(last, plan)
        if not self.running or not plan.preempted:
            self._admit(plan, chosen, self.blocks_needed(chosen))
        copies = self.tables.reserve({seq.seq_id: seq.num_computed_tokens + n for seq, n in chosen.items()})
        rows = [seq.next_row(count) for seq, count in sorted(chosen.items(), reverse=True)]
        samples = {row.seq_id for row in rows if row.samples}
        forks = {seq.seq_id: [fork.seq_id for fork in seq.forks] for seq in chosen if seq.forks}
        return StepPlan(rows, plan.swaps_out, copies, plan.swaps_in,
                        {seq_id: ids for seq_id, ids in forks.items() if seq_id in samples}, plan.preempted)
