-- Share of attempts with the right answer, and share with calls, by the policy version that began them, over five
-- versions at a time. The last column is the share of right answers without a call.
select version_min / 5 * 5 as policy_version,
       round(avg(reward)::numeric, 3) as right_answers,
       round(avg((response like '[%')::int), 3) as attempts_with_calls,
       round(avg(reward) filter (where response not like '[%')::numeric, 3) as right_without_calls
from experience_view
where run = 'calculator' and reward is not null
group by 1
order by 1
