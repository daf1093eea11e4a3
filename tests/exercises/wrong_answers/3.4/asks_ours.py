"""Asks ours."""

from minillm.serving import scheduler

DIAGNOSIS = "forbidden"


class SchedulerSchedule(scheduler.Scheduler):
    def schedule(self):
        return super().schedule()
