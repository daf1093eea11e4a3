"""In small methods."""

from minillm.serving import scheduler
from minillm.serving.scheduler import StepPlan, _totals, choose_victim, split_budget


class SchedulerSchedule(scheduler.Scheduler):
    def schedule(self):
        plan = StepPlan()
        chosen = self.shared()
        while self.lacking(chosen) > 0:
            self._preempt(choose_victim(self.running), plan)
            chosen = {seq: count for seq, count in chosen.items() if seq in self.running}
        if not (plan.preempted and self.running):
            self._admit(plan, chosen, self.blocks_needed(chosen))
        plan.copies.extend(self.tables.reserve(_totals(chosen)))
        for seq in self.running:
            if seq in chosen:
                self.write(plan, seq, chosen[seq])
        return plan

    def shared(self):
        config = self.config
        counts = split_budget([seq.num_uncomputed_tokens for seq in self.running], config.max_num_batched_tokens,
                              chunk_size=config.chunk_size)
        return {seq: counts[place] for place, seq in enumerate(self.running) if counts[place]}

    def lacking(self, chosen):
        return self.blocks_needed(chosen) - self.tables.pool.available

    def write(self, plan, seq, count):
        row = seq.next_row(count)
        plan.rows.append(row)
        if row.samples and seq.forks:
            plan.forks[seq.seq_id] = [child.seq_id for child in seq.forks]
