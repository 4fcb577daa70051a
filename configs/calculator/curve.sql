-- How many attempts end with the right answer, and how many of them call the calculator, by the policy version
-- that began them, over five versions at a time. The last column is what the policy reaches without the calculator.
select version_min / 5 * 5 as policy_version,
       round(avg(reward)::numeric, 3) as right_answers,
       round(avg((response like '[%')::int), 3) as attempts_with_calls,
       round(avg(reward) filter (where response not like '[%')::numeric, 3) as right_without_calls
from experience_view
where run = 'calculator' and reward is not null
group by 1
order by 1
