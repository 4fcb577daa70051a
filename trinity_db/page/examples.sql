-- Written by docs/generate.py from sql-cookbook.md.
-- Parts, each with its questions.

-- Is it learning?

-- 1. Does the reward rise from version to version?
select version, experiences, reward, reward_now, response_length
from policy_progress
where run = 'larger'
order by version

-- 2. Which tasks does the run solve, and which never?
select t.payload ->> 'prompt' as prompt, s.issued, s.scored, s.solved,
       round((s.alpha / (s.alpha + s.beta))::numeric, 2) as chance
from task_stat s
join task t on t.id = s.task_id
join run r on r.id = s.run_id
where r.name = 'larger'
order by chance, s.issued desc
limit 20

-- 3. How do two runs compare at the same trainer step?
select b.step,
       max(b.reward) filter (where b.run = 'larger') as grpo,
       max(b.reward) filter (where b.run = 'larger-rloo') as rloo
from batch_view b
where b.run in ('larger', 'larger-rloo') and b.state = 'committed'
group by b.step
order by b.step

-- 4. What did the loss do?
select m.step, m.value as loss
from metric m
join run r on r.id = m.run_id
where r.name = 'larger' and m.name = 'loss'
order by m.id

-- 5. Which numbers are measured at all?
select m.role, m.name, count(*), max(m.step) as last_step
from metric m
join run r on r.id = m.run_id
where r.name = 'larger'
group by m.role, m.name
order by m.role, m.name

-- 6. Do responses get longer while the reward stays?
select version_min / 10 * 10 as versions, avg(response_length) as tokens, avg(reward) as reward
from experience_view
where run = 'larger'
group by 1
order by 1

-- 7. What share of groups has no signal, because all rewards are equal?
select g.version_min as version, count(*) as groups,
       round(1.0 * count(*) filter (where g.reward_variance = 0) / count(*), 2) as without_signal
from rollout_group g
join run r on r.id = g.run_id
where r.name = 'larger' and g.reward_count > 1
group by g.version_min
order by g.version_min

-- What does the model write?

-- 8. The best and the worst answers of the newest version that has rewards.
(select 'best' as which, prompt, response, reward from experience_view
 where run = 'larger' order by version_min desc nulls last, reward desc nulls last limit 5)
union all
(select 'worst', prompt, response, reward from experience_view
 where run = 'larger' and reward is not null order by version_min desc, reward limit 5)

-- 9. How did the answers to one task change?
select version_min as version, response, reward
from experience_view
where run = 'larger' and prompt = '3,7='
order by version_min, id

-- 10. Which answers are given again and again?
select response, count(*), avg(reward) as reward
from experience_view
where run = 'larger'
group by response
order by count(*) desc
limit 10

-- 11. Which answers contain a word?
select id, version_min as version, prompt, response
from experience_view
where run = 'larger' and response ilike '%9%'
order by id desc
limit 10

-- 12. How often does a response end because it was too long?
select version_min as version, round(avg((finish_reason = 'length')::int), 2) as cut_off
from experience_view
where run = 'larger'
group by version_min
order by version_min

-- 13. Members of the latest groups, each with its reward and the advantage it was trained with.
select e.group_id, e.member, e.response, e.reward, i.advantage, b.step
from experience_view e
join batch_item i on i.experience_id = e.id
join batch b on b.id = i.batch_id and b.state = 'committed'
where e.run = 'larger'
order by b.step desc, e.group_id, e.member
limit 8

-- What was it trained on?

-- 14. Which rows made version 4?
select step, ordinal, experience_id, reward, advantage, staleness
from lineage(4, 'larger')
order by step, ordinal

-- 15. How many different rows, tasks and tokens made it?
select count(distinct l.experience_id) as rows, count(distinct g.task_id) as tasks, sum(e.response_length) as tokens
from lineage(4, 'larger') l
join experience e on e.id = l.experience_id
join rollout_group g on g.id = e.group_id

-- 16. Which batches used this row?
select b.step, b.policy_version, b.included_version, i.reward, i.advantage, i.staleness, b.state
from batch_item i
join batch b on b.id = i.batch_id
where i.experience_id = (select min(experience_id) from lineage(4, 'larger'))
order by b.id

-- 17. Was any row used more often than `max_uses` allows?
select e.id, count(*) as uses
from experience e
join run r on r.id = e.run_id
join batch_item i on i.experience_id = e.id
join batch b on b.id = i.batch_id and b.state = 'committed'
where r.name = 'larger'
group by e.id
having count(*) > 1

-- 18. How stale were the rows of each step?
select step, policy_version, staleness_min, staleness_mean, staleness_max
from batch_view
where run = 'larger' and state = 'committed'
order by step

-- 19. Which batches were drawn again after a crash?
select step, state, policy_version, included_version, created_at
from batch_view
where run = 'larger' and state = 'reopened'
order by id

-- 20. Which statement drew the latest batches, with which seed?
select step, sampler, seed, snapshot, parameters, left(query, 60) as query
from batch
where run_id = (select id from run where name = 'larger')
order by step desc
limit 3

-- 21. Which trained rows have another reward today?
select experience_id, step, reward_used, reward_now, source, changed_by, changed_at
from reward_change_view
where run = 'larger'
order by changed_at desc

-- What was not trained on, and why?

-- 22. Dropped rows by reason.
select stage, reason, sum(rows) as rows, sum(groups) as groups
from drop_view
where run = 'larger'
group by stage, reason
order by rows desc

-- 23. Are long responses or hard tasks dropped more often?
select taskset, length_class, difficulty, reason, sum(rows) as rows
from drop_view
where run = 'larger'
group by taskset, length_class, difficulty, reason
order by rows desc
limit 20

-- 24. Why was this row never used?
select e.id, e.state, e.reward, e.staleness_now, d.stage, d.reason, d.detail
from experience_view e
left join "drop" d on d.experience_id = e.id
where e.run = 'larger' and e.use_count = 0
order by e.id
limit 10

-- 25. Which rows made a processor fail, and with which error?
select p.experience_id, p.processor, p.attempt, p.error, p.created_at
from processing p
join experience e on e.id = p.experience_id
join run r on r.id = e.run_id
where r.name = 'larger' and p.outcome = 'failed'
order by p.id desc
limit 20

-- 26. Which rollouts failed, and with which error?
select error, count(*), max(finished_at) as last
from rollout
where run_id = (select id from run where name = 'larger') and state = 'failed'
group by error
order by count(*) desc

-- Who judged what?

-- 27. Every reward of a row, in the order in which it was given.
select v.source, v.name, v.value, v.weight, v.created_by, v.created_at
from reward_event v
join experience e on v.experience_id = e.id or v.rollout_id = e.rollout_id
where e.id = (select min(experience_id) from lineage(4, 'larger'))
order by v.id

-- 28. Which rows wait for a person?
select run, experience_id, prompt, response, created_at
from awaited_reward_view
order by created_at

-- Who works, who waits?

-- 29. Who is alive, and what does each worker hold?
select run, role, host, pid, silent_seconds, alive, groups, rows, batches
from lease_view
order by run, role

-- 30. Does the trainer wait for rollouts, or compute?
select m.step,
       max(m.value) filter (where m.name = 'time/wait_for_batch') as waiting_seconds,
       max(m.value) filter (where m.name = 'time/step') as computing_seconds
from metric m
join run r on r.id = m.run_id
where r.name = 'larger' and m.name in ('time/wait_for_batch', 'time/step')
group by m.step
order by m.step

-- How good is it on other tasks?

-- 31. What did each evaluation find?
select taskset, version, samples, tasks, mean, mean_low, mean_high, pass_1, pass_k, failed, waiting
from evaluation_view
where run = 'larger'
order by taskset, version, id

-- 32. Which tasks did a later version lose that version 0 solved?
select a.task, a.solved as solved_before, b.solved as solved_after, b.version
from evaluation_task_view a
join evaluation_task_view b on b.run = a.run and b.taskset = a.taskset and b.task = a.task and b.version > a.version
where a.run = 'larger' and a.version = 0 and a.solved > b.solved
order by b.version, a.solved - b.solved desc

-- 33. Is one evaluation better than another, over the tasks that both have?
select a.version, b.version, d.tasks, d.mean, d.mean_low, d.mean_high
from evaluation_view a
join evaluation_view b on b.taskset = a.taskset and b.id > a.id
cross join evaluation_difference(a.id, b.id) d
where a.run = 'larger'
