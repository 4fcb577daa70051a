-- Reward of the rollouts by the reward model, and the mean of their digits, by the policy version that began them, over
-- ten versions at a time.
select e.version_min / 10 * 10 as policy_version,
       round(avg(v.value) filter (where v.name = 'reward_model')::numeric, 2) as reward,
       round(avg(v.value) filter (where v.name like '%mean_digit')::numeric, 2) as mean_digit
from experience e
join reward_event v on v.rollout_id = e.rollout_id
join run r on r.id = e.run_id
where r.name = 'large-digits'
group by 1
order by 1
